-- Joined on run_id: rows count only when they come from the run that `days` describes.
select
    days.customer_id,
    days.customer_name,
    days.logical_date,
    days.currency_code,
    days.provisional,
    (sum(spent.cost_micros) / 1e6)::decimal(18, 2) as spend
from {{ source('ads', 'days') }} as days
join {{ source('ads', 'campaign_daily') }} as spent using (customer_id, logical_date, run_id)
where days.query_name = 'campaign_daily'
  and days.is_readable
  {%- if var('only_complete_days') %}
  and days.logical_date in {{ complete_days('campaign_daily', var('may_miss')) }}
  {%- endif %}
group by all
