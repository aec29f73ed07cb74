{# Fails with one row for each expected customer and day that this column's days need and that is not readable. #}
{% test only_complete_days(model, column_name, query_name, may_miss=[]) %}
select days.customer_id, days.customer_name, days.logical_date, days.condition, days.reason
from {{ source('ads', 'days') }} as days
where days.query_name = '{{ query_name }}'
  and not days.is_readable
  {%- if may_miss %} and days.customer_id not in ('{{ may_miss | join("', '") }}'){% endif %}
  and days.logical_date in (select {{ column_name }} from {{ model }})
{% endtest %}
