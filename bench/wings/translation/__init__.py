"""Translation: a wing with the model, its decoding and its scores; the tasks are in `tasks/translation/`."""
