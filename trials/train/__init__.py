"""Fine-tuning: one step, the loop, the procedures and distillation."""
