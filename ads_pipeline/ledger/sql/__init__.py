"""The ledger's database: connections, tables, statements, and the values that rows become."""
