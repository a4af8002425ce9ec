"""The paper's evidence: simulators, metrics, competitors, experiments."""
