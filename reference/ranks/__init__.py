"""First programs of many processes: who am I, how many are we, and how does a tensor get from one to another."""
