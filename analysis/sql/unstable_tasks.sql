-- unstable_tasks: tasks whose score moves by points from seed to seed, whatever is dropped.
--
-- The paper leaves RTE and MRPC out of its Tables 2, 4 and 5 for that reason (footnote 6); CoLA and
-- WNLI, which it does not use, are known for the same. Every other task counts as stable.
SELECT unnest(['rte', 'mrpc', 'cola', 'wnli']) AS task  -- compared in lower case
