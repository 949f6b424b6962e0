-- predictions: one row per trial and dev example. Loaded when a query names this view.
--
-- example     row number in the split, 0 is the first.
-- label       the class index, or the value of a regression task; prediction likewise.
-- scores      the logits, one per class.
SELECT * FROM store.predictions
