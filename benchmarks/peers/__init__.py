"""The servers that are measured, each started and stopped by the harness."""
