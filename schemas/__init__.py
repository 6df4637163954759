"""The catalogue of contracts: JSON Schema files, golden messages, and the models of the example workflow."""
