"""`pentimento up`: the services as local processes: started together, kept up, drained in order, none left behind."""
