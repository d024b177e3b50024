"""What a launch will be, known before it: knowledge, rules, memory fit, plan."""
