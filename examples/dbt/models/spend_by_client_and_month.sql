-- Amounts in two currencies are never added. days_missing counts the expected days that no reader sees;
-- complete days on which another customer is missing are not summed either, so days_summed says how many were.
select
    days.customer_id,
    any_value(days.customer_name) as customer_name,
    date_trunc('month', days.logical_date)::date as month,
    days.currency_code,
    sum(daily.spend) as spend,
    count(daily.spend) as days_summed,
    count(*) filter (not days.is_readable) as days_missing,
    bool_or(daily.provisional) as provisional -- null: nobody knows, or no day was summed
from {{ source('ads', 'days') }} as days
left join {{ ref('spend_by_day') }} as daily using (customer_id, logical_date)
where days.query_name = 'campaign_daily'
group by all
