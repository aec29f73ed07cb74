"""The steps that writes of several subjects share: leases, events, status rows, the audit log, one transaction."""
