"""The algorithm, without an engine, a learner or a configuration file. It needs numpy only."""
