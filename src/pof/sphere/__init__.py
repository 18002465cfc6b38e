"""The paper in training: row norms, HyperSign, the penalty L_tr, projection, `attach`, and spherical layers."""
