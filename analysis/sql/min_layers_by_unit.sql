-- min_layers_by_unit: how many layers a task needs. One row per sweep, model, procedure, strategy, task,
-- allowed loss (delta) and unit. The view min_layers has the rows whose unit is points.
--
-- The answer is the LARGEST K whose loss is within delta, even if a smaller K loses more: the loss
-- need not grow with K, and the question is which network is good enough.
--
-- delta            the loss allowed, from `store.deltas` (--within), in `unit`:
--                  points   mean over seeds of (score of K=0 - score), paired by seed
--                  percent  100 * that / mean score of K=0
-- max_dropped      the answer, a K. Null where the bounds differ or there is no K=0.
--                  min_layers_kept = depth - K.
-- max_dropped_low, max_dropped_high
--                  the answer lies between these (equal: it is known). Low is the smallest network that
--                  was trained and is within delta. High counts a K with a missing seed, a K that no
--                  search looked at for this loss (a deferred one could drop all but one layer), and a
--                  K of `untried` if a larger K was trained.
-- untried          the K that the strategy can drop and nobody trained, from low to the next K that was
--                  trained: one of them may be the answer. Null: none. If no K above low was trained,
--                  they are all K above low and do not count in high: low is enough, fewer may be.
-- rank             1: the answer of its task, loss and unit over all strategies and procedures, which
--                  is the smallest network, then the better score, then the order of the file. Null
--                  without K=0. A row with a larger rank is not the answer, whatever its bounds are.
-- task_dropped_low, task_dropped_high, task_untried
--                  the bounds over all strategies and procedures: the same on each row of a task. A K
--                  that any strategy trained is tried. If there are scores with and without
--                  distillation, each of the two has its own.
-- caveats          what to say next to the answer; [] is none:
--                  no K=0          the full model has no score: there is no answer
--                  missing         cells that are missing or failed can change the answer
--                  not searched    see n_not_searched
--                  not tried       see untried
--                  unless dips     see assumed
--                  fewer seeds     n_seeds is smaller than n_seeds_asked
--                  not comparable  cells of this task were trained in more than one way (cells.mixed)
--                  did not learn   n_learned_nothing is above 0: there is no answer
--                  blind dev set   see dev_blind: no score on these dev rows is an answer
--                  near guessing   the full model is less than 5 points (or delta) above `majority`
--                  no better than guessing   the answer's network, where the full model learned
--                  other networks  of other strategies or procedures may be smaller: see task_dropped_high
--                  one strategy    no other strategy dropped a layer on this task
-- kept_layers, score_full, score_kept (points), loss (in `unit`), n_seeds (pairs)
--                  describe max_dropped_low.
-- n_seeds_asked    seeds that the sweep lists for this task, at any K. If n_seeds is smaller, the
--                  answer rests on fewer seeds than were asked for.
-- n_missing        pairs of K and seed that are listed here and can't be compared yet.
-- n_not_searched   how many K just above max_dropped_low a search (`until: min_layers`) never ran,
--                  because it was for other losses. One of them could be the answer.
-- assumed          the K above max_dropped_low that a search never ran, ascending; null: none. The
--                  answer assumes that each of them loses too much.
-- tried            the K above 0 with a score, ascending.
-- majority         points of always guessing one label (ranking: of a random order); 0 for a
--                  correlation. Null where the metric has no such score.
-- kind, metric     of the task. dev_blind: why its dev rows can't show what a network learned, such as
--                  one label in all of them; null: they can.
-- n_full           seeds of K=0 that are done, and how many of them did not learn: they score no
-- n_learned_nothing  better than `majority`, which is below it or less than 0.005 points above (two
--                  decimals don't show that). For a correlation (pearson, spearman, mcc) `majority`
--                  is 0. A null score counts as not learned. Without a `majority` none is counted.
--                  A model that did not learn has nothing to lose, so the answer means little.
-- Other cells that a search did not need are not missing. A seed whose K=0 is in another sweep only
-- is ignored.
-- Networks without some of their feed-forwards are left out.
-- K=0 is shared: a strategy that does not list it uses the K=0 of another strategy. It is always the
-- K=0 of cells.score_full, also where another model is the teacher and K=0 learns from it.
-- MATERIALIZED: it is read more than once, and DuckDB would plan its inputs again for each reader.
WITH listed AS MATERIALIZED (FROM cells),

whole_layers AS MATERIALIZED (
    SELECT *
    FROM listed
    WHERE feed_forward = 'none' AND state <> 'not_needed'
        AND NOT (search IS NOT NULL AND state = 'done' AND score_full IS NULL)
),

not_needed AS (
    SELECT DISTINCT sweep, model, procedure, strategy, task, k
    FROM listed
    WHERE feed_forward = 'none' AND state = 'not_needed'
),

seeds_asked AS (
    SELECT sweep, model, procedure, task, count(DISTINCT seed) AS n_seeds_asked, bool_or(mixed) AS mixed
    FROM listed
    GROUP BY ALL
),

full_depth AS MATERIALIZED (
    SELECT sweep, model, procedure, task, seed, any_value(score_full) AS score,
        any_value(kept_layers) AS kept_layers, min(cell) AS cell,
        bool_or(full_trial_id IS NOT NULL) AS done,
        coalesce(
            any_value(majority),
            CASE WHEN any_value(metric) IN ('pearson', 'spearman', 'mcc') THEN 0 END
        ) AS constant,
        any_value(kind) AS kind, any_value(metric) AS metric, any_value(dev_blind) AS dev_blind
    FROM whole_layers
    WHERE n_kept = depth
    GROUP BY ALL
),

learned AS (  -- how many seeds of K=0 did not learn
    SELECT sweep, model, procedure, task,
        count(*) AS n_full,
        max(constant) AS majority,
        any_value(kind) AS kind, any_value(metric) AS metric, any_value(dev_blind) AS dev_blind,
        count(*) FILTER (WHERE score IS NULL OR score < constant + 0.005) AS n_learned_nothing
    FROM full_depth
    WHERE done
    GROUP BY ALL
),

lists AS (  -- leaves out a strategy that only lists K=0 for the others
    SELECT sweep, model, procedure, any_value(distill) AS distill, strategy, task, depth, min(cell) AS position,
        bool_or(n_kept IS DISTINCT FROM depth OR threshold IS NOT NULL)
        OR (sweep, model, procedure, strategy, task) IN (
            SELECT (sweep, model, procedure, strategy, task) FROM not_needed
        ) AS prunes
    FROM whole_layers
    GROUP BY sweep, model, procedure, strategy, task, depth
    QUALIFY prunes OR NOT bool_or(prunes) OVER (PARTITION BY sweep, model, procedure, task)
),

points AS (  -- a network per K and seed; two thresholds that chose the same layers count once
    SELECT sweep, model, procedure, strategy, task, depth, k, seed,
        any_value(kept_layers) AS kept_layers,
        any_value(score) AS score,
        any_value(score_full) AS score_full
    FROM whole_layers
    WHERE n_kept IS DISTINCT FROM depth AND state <> 'impossible'
    GROUP BY sweep, model, procedure, strategy, task, depth, k, seed,
        CASE WHEN k IS NULL THEN threshold END
    UNION ALL
    SELECT sweep, model, procedure, strategy, task, depth, 0, seed, kept_layers, score, score
    FROM lists
    JOIN full_depth USING (sweep, model, procedure, task)
),

curve AS MATERIALIZED (  -- what dropping K layers loses, in points
    SELECT sweep, model, procedure, strategy, task, depth, k,
        any_value(kept_layers) AS kept_layers,
        avg(score_full) FILTER (WHERE score IS NOT NULL) AS score_full,
        avg(score) FILTER (WHERE score_full IS NOT NULL) AS score_kept,
        avg(score_full - score) AS loss,
        count(score_full - score) AS n,
        count(*) AS n_expected
    FROM points
    GROUP BY ALL
),

gaps AS (  -- the K that a search never ran, by the next smaller K that it ran
    SELECT sweep, model, procedure, strategy, task, k_below AS k, max(k) AS k_last, count(*) AS n_k
    FROM (
        SELECT *, max(k) FILTER (WHERE n > 0) OVER (
            PARTITION BY sweep, model, procedure, strategy, task ORDER BY k
        ) AS k_below
        FROM not_needed
        FULL JOIN curve USING (sweep, model, procedure, strategy, task, k)
    )
    WHERE n IS NULL
    GROUP BY ALL
),

never_run AS (  -- the K of a search for which it asked no cell
    SELECT sweep, model, procedure, strategy, task, list(k ORDER BY k) AS ks
    FROM not_needed
    ANTI JOIN curve USING (sweep, model, procedure, strategy, task, k)
    GROUP BY ALL
),

judged AS (
    SELECT
        *,
        CASE
            WHEN unit = 'points' THEN loss
            WHEN score_full > 0 THEN 100 * loss / score_full
            WHEN loss <= 0 THEN 0  -- of a score of zero, only no loss is within delta
        END AS loss_in_unit,
        k IS NULL OR n < n_expected AS undecided,
        CASE
            WHEN k = 0 THEN n > 0
            ELSE NOT undecided AND coalesce(loss_in_unit <= delta + 1e-9, false)  -- float noise
        END AS holds,
        coalesce(k_last, k, depth - 1) AS k_at_most,  -- larger K that were never run may hold as well
        coalesce(n_k, 0) AS n_never_run
    FROM curve
    LEFT JOIN gaps USING (sweep, model, procedure, strategy, task, k)
    CROSS JOIN store.deltas
    CROSS JOIN (VALUES ('points'), ('percent')) AS units(unit)
),

answers AS (
    SELECT
        sweep, model, procedure, strategy, task, depth, delta, unit,
        coalesce(bool_or(k = 0 AND holds), false) AS has_full,
        coalesce(max(k) FILTER (WHERE holds), 0) AS max_dropped_low,
        greatest(
            0,
            arg_max(k_at_most, k) FILTER (WHERE holds),
            max(k_at_most) FILTER (WHERE undecided)
        ) AS listed_high,  -- without the K that nobody listed
        arg_max(kept_layers, k) FILTER (WHERE holds) AS kept_layers,
        arg_max(score_full, k) FILTER (WHERE holds) AS score_full,
        arg_max(score_kept, k) FILTER (WHERE holds) AS score_kept,
        arg_max(loss_in_unit, k) FILTER (WHERE holds) AS loss,
        coalesce(arg_max(n, k) FILTER (WHERE holds), 0) AS n_seeds,
        sum(n_expected - n)::BIGINT AS n_missing,
        list(k ORDER BY k) FILTER (WHERE k > 0 AND n > 0) AS tried,
        coalesce(arg_max(n_never_run, k) FILTER (WHERE holds), 0) AS n_not_searched
    FROM judged
    GROUP BY ALL
),

ranked AS MATERIALIZED (
    SELECT
        answers.*, distill, position, possible.ks AS possible,
        coalesce(list_filter(never_run.ks, lambda k: k > max_dropped_low), []) AS assumed,
        CASE WHEN n_seeds > 0 THEN row_number() OVER (
            PARTITION BY sweep, model, task, delta, unit
            ORDER BY n_seeds > 0 DESC, max_dropped_low DESC, score_kept DESC NULLS LAST, position
        ) END AS rank,
        (distill <> 'none'
            AND count(DISTINCT distill <> 'none') FILTER (WHERE n_seeds > 0) OVER (
                PARTITION BY sweep, model, task, delta, unit
            ) > 1)::VARCHAR AS side
    FROM answers
    JOIN lists USING (sweep, model, procedure, strategy, task, depth)
    JOIN store.possible
        ON possible.strategy = answers.strategy AND possible.depth = answers.depth
    LEFT JOIN never_run USING (sweep, model, procedure, strategy, task)
),

scoped AS (  -- an answer of one strategy and procedure, and one over all of them, by the same rule
    SELECT *, [procedure, strategy] AS scope FROM ranked
    UNION ALL
    SELECT *, [side] AS scope FROM ranked
),

bests AS (
    SELECT
        sweep, model, task, delta, unit, depth, scope,
        min(rank) AS rank,
        bool_or(has_full) AS has_full,
        max(max_dropped_low) AS low,
        max(listed_high) AS listed_high,
        flatten(list(possible)) AS possible,
        flatten(list(coalesce(tried, []))) AS tried,
        coalesce(arg_min(assumed, rank), []) AS assumed
    FROM scoped
    GROUP BY ALL
),

bounds AS (
    SELECT
        *,
        coalesce(list_min(list_filter(tried, lambda k: k > low)), depth) AS above,
        CASE WHEN has_full AND low = listed_high THEN nullif(list_sort(list_distinct(list_filter(
            possible, lambda k: k > low AND k < above AND NOT list_contains(assumed, k)
        ))), []) END AS untried,
        CASE WHEN above < depth AND untried IS NOT NULL THEN list_max(untried) ELSE listed_high END
            AS high
    FROM bests
)

SELECT
    sweep, model, procedure, distill, strategy, task, delta, unit, depth,
    CASE WHEN answer.has_full AND own.low = own.high THEN own.low END AS max_dropped,
    depth - max_dropped AS min_layers_kept,
    max_dropped_low, own.high AS max_dropped_high, own.untried, answer.rank,
    overall.low AS task_dropped_low, overall.high AS task_dropped_high,
    overall.untried AS task_untried,
    list_filter([
        CASE WHEN NOT answer.has_full THEN 'no K=0' END,
        CASE WHEN n_missing > 0 AND NOT (answer.has_full AND own.low = own.listed_high)
            THEN 'missing' END,
        CASE WHEN n_not_searched > 0 THEN 'not searched' END,
        CASE WHEN own.untried IS NOT NULL THEN 'not tried' END,
        CASE WHEN len(answer.assumed) > 0 THEN 'unless dips' END,
        CASE WHEN n_seeds BETWEEN 1 AND n_seeds_asked - 1 THEN 'fewer seeds' END,
        CASE WHEN mixed THEN 'not comparable' END,
        CASE WHEN n_learned_nothing > 0 THEN 'did not learn' END,
        CASE WHEN dev_blind IS NOT NULL THEN 'blind dev set' END,
        CASE WHEN coalesce(n_learned_nothing, 0) = 0
            AND score_full - majority < greatest(5, CASE WHEN unit = 'points' THEN delta END)
            THEN 'near guessing' END,
        CASE WHEN coalesce(n_learned_nothing, 0) = 0 AND max_dropped_low > 0
            AND score_kept < majority + 0.005 THEN 'no better than guessing' END,
        CASE WHEN answer.rank = overall.rank AND overall.high > own.high THEN 'other networks' END,
        CASE WHEN count(DISTINCT CASE WHEN len(tried) > 0 THEN answer.strategy END)
            OVER (PARTITION BY sweep, model, task, delta, unit) = 1 THEN 'one strategy' END
    ], lambda caveat: caveat IS NOT NULL) AS caveats,
    kept_layers, score_full, score_kept, loss, n_seeds, n_seeds_asked, n_missing, n_not_searched,
    nullif(answer.assumed, []) AS assumed, tried, majority,
    kind, metric, dev_blind,
    coalesce(n_full, 0) AS n_full, coalesce(n_learned_nothing, 0) AS n_learned_nothing, position
FROM (SELECT *, [procedure, strategy] AS scope FROM ranked) AS answer
JOIN (SELECT * EXCLUDE (tried) FROM bounds) AS own USING (sweep, model, task, delta, unit, depth, scope)
JOIN (SELECT * EXCLUDE (tried), scope[1] AS side FROM bounds WHERE len(scope) = 1) AS overall
    USING (sweep, model, task, delta, unit, depth, side)
JOIN seeds_asked USING (sweep, model, procedure, task)
LEFT JOIN learned USING (sweep, model, procedure, task)
