"""Performs the actions of operators: a preview, one execution, and its report."""
