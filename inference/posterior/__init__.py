"""What a trained pair knows: moments, draws, predictions, their scores and how unsure they are."""
