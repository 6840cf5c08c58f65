package store

// taskTables are the tables of what the hub asks of agents, and what they discovered.
var taskTables = []string{}
