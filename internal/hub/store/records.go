package store

// recordTables are the tables of audit, events, traffic and notices.
var recordTables = []string{}
