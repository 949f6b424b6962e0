-- predictions: one row per trial and dev example. Loaded when a query names this view.
--
-- example     row number in the split, 0 is the first.
-- label       the class index, or the value of a regression task; prediction likewise. For several
--             labels, how many. For a query, label is the number of relevant passages, and
--             prediction is the query's own score.
-- scores      the logits, one per class.
-- tally       for a metric that is a ratio of sums: what the example adds to the sums, as part, whole
--             for each pair. Null for other metrics.
SELECT * FROM store.predictions
