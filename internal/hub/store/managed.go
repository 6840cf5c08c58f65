package store

// managedTables are the tables of enrolled agents, managed tunnels and access.
var managedTables = []string{}
