-- predictions: one row per trial and dev example. Loaded when a query names this view.
--
-- example     row number in the split, 0 is the first.
-- label       the class index, or the value of a regression task; prediction likewise. Of several
--             labels how many; of a query the number of relevant passages, and its own score.
-- scores      the logits, one per class.
-- tally       what the example adds to the sums that the metric is the ratio of: part, whole, and so on for each pair;
--             null for a metric that is no ratio of sums.
SELECT * FROM store.predictions
