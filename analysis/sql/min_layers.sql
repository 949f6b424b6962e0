-- min_layers: how many layers a task needs, with the loss in points. One row per sweep, model,
-- procedure, strategy, task and allowed loss (delta).
--
-- The rows and columns of min_layers_by_unit whose unit is points; it describes them, and has the same
-- answers with the loss in percent.
FROM min_layers_by_unit WHERE unit = 'points'
