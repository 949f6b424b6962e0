-- epochs: one row per trial, epoch, split and metric.
--
-- epoch  1 is the first.
-- split  validation, validation_mismatched, ...
-- value  as a share (0..1; correlations -1..1), not in points.
SELECT
    trial_id, model, task, seed, k, kept_layers,
    entry.epoch AS epoch,
    entry.split AS split,
    entry.metric AS metric,
    entry.value AS value
FROM (
    SELECT trial_id, model, task, seed, k, kept_layers, unnest(epoch_metrics) AS entry
    FROM trials
)
