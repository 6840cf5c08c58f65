package store

// sharedTables are the tables of what hubs on one database tell each other.
var sharedTables = []string{}
