-- trials: one row per network that was trained to the end, all columns of its record.
--
-- score      the main metric after the last epoch, in points (0..100; Pearson and MCC -100..100).
--            Null where the metric is not a number (a correlation of constant predictions).
-- last, best the same metric as a share (0..1). `best` is chosen on the rows that it is measured on:
--            never compare networks by it.
-- seconds_*  seconds; *_per_second examples a second; peak_memory_bytes bytes.
-- Every other column is described in docs/store.md.
SELECT *, CASE WHEN isfinite(last) THEN 100 * last END AS score
FROM store.trials  -- counts a copied file once
