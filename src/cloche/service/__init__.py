"""The environment service without HTTP: admission, life, events. Must know no agent, model or task."""
