"""The main job from nothing: an engine, a model, two ways of serving it, a verdict."""
