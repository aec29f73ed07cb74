{# Prints the first rows of each failed test, so that a build names the customers and the days. #}
{% macro name_missing_days(results) %}
  {% for result in results if execute and result.status == 'fail' and result.node.config.store_failures %}
    {% for row in run_query('select * from ' ~ result.node.relation_name ~ ' limit 20').rows %}
      {{ print(row.values() | join(' | ')) }}
    {% endfor %}
  {% endfor %}
{% endmacro %}
