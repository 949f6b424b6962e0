-- attempts: one row per try at a trial, or at a profile, that ended in a failure.
--
-- trial_id   the trial that was tried, or the profile: a profile's identifier starts with p.
-- error_type out_of_memory, diverged, missing_input, unsupported_model, unsupported_device,
--            not_deterministic, worker_lost, device_error, node_lost, bug
-- final      false: it was tried again in the same run. Null (files written before this column
--            existed) means true.
-- A trial may have failed attempts and still be done: a later attempt succeeded.
SELECT *
FROM store.attempts
QUALIFY row_number() OVER (PARTITION BY attempt_id ORDER BY ended_at DESC) = 1
