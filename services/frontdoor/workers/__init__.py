"""Workers: connections to them, attempts on them, the models they hold and are to hold."""
