"""Moving messages from one store to another, and checking that a store is whole."""
