"""The faces of the product: command line, doctor, report, notifications and metrics. They decide nothing."""
