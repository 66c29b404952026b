"""Coverage-guided fuzzing of whatever reads what a stranger sends."""
