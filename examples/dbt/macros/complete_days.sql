{# The days on which every expected account is readable, except the accounts in `may_miss`. #}
{% macro complete_days(query_name, may_miss=[]) -%}
(
    select logical_date
    from {{ source('ads', 'days') }}
    where query_name = '{{ query_name }}'
    group by logical_date
    having bool_and(is_readable {%- for id in may_miss %} or customer_id = '{{ id }}'{% endfor %})
)
{%- endmacro %}
