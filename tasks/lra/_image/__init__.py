"""Reading CIFAR-10."""
