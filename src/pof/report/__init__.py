"""Tables and pages that show networks: their accuracy, weights, file and speed."""
