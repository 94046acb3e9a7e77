"""TensorFlow: the coordinator on stock TensorFlow servers."""
