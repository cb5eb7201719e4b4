"""What runs beside a job and never in it: plans, simulations, reports, data and evaluations."""
