"""The public proof: what the queue promises, checked by machines. ``make proof`` runs it all."""
