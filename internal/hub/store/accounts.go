package store

// accountTables are the tables of people: users, sign-ins, keys, providers.
var accountTables = []string{}
