#!/usr/bin/env python3
"""Writes the files of Grafana and Prometheus from panels.py and alerts.py.

    python3 dashboards/make.py            writes the files
    python3 dashboards/make.py --check    fails if a file is not what it would write
"""

import json
import pathlib
import sys

sys.dont_write_bytecode = True

from alerts import ALERTS, RECORDED  # noqa: E402
from panels import DASHBOARDS  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 7
WRITTEN = "# Written by dashboards/make.py from {}: change it there.\n"


def variables(role, has_models):
    found = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]
    choices = [("instance", f"label_values(zillion_build_info{{{role}}}, instance)")]
    if has_models:
        choices.append(("model", "label_values(zillion_serving_current_version, model)"))
    for name, query in choices:
        found.append({
            "name": name, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": name},
            "definition": query, "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        })
    return found


def draw(number, x, y, panel):
    targets = [
        {"refId": chr(ord("A") + i), "datasource": SOURCE, "expr": expr, "legendFormat": name}
        for i, (expr, name) in enumerate(panel["series"])
    ]
    options = {
        "timeseries": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list", "placement": "bottom"}},
        "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"},
    }[panel["kind"]]
    return {
        "id": number, "type": panel["kind"], "title": panel["title"], "description": panel["about"], "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT}, "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel["unit"]}, "overrides": []}, "options": options,
    }


def dashboard(name, title, role, has_models, rows):
    panels, number, y = [], 0, 0
    for row, members in rows:
        number += 1
        panels.append({"id": number, "type": "row", "title": row, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}})
        y += 1
        for at, member in enumerate(members):
            number += 1
            panels.append(draw(number, at % 3 * WIDTH, y + at // 3 * HEIGHT, member))
        y += (len(members) + 2) // 3 * HEIGHT
    return {
        "uid": f"zillion-{name}", "title": title, "tags": ["zillion"], "schemaVersion": 39, "version": 1, "editable": True,
        "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-6h", "to": "now"}, "timezone": "",
        "templating": {"list": variables(role, has_models)}, "annotations": {"list": []}, "links": [], "panels": panels,
    }


def quote(text):
    """Returns a text in quotes: a string of JSON is a string of YAML."""
    return json.dumps(text, ensure_ascii=False)


def write_recording():
    lines = [WRITTEN.format("alerts.py"), "groups:\n  - name: zillion\n    rules:\n"]
    for name, about, expr in RECORDED:
        lines.append(f"      # {about}\n      - record: {name}\n        expr: {quote(expr)}\n")
    return "".join(lines)


def annotations(alert):
    causes = " ".join(f"({number}) {cause}." for number, cause in enumerate(alert["causes"], 1))
    description = f"{alert['means']} Likely causes: {causes} Look at: `{alert['look']}`"
    return {"summary": alert["summary"], "description": description, "dashboard": f"zillion-{alert['dashboard']}"}


def write_alerts():
    lines = [WRITTEN.format("alerts.py"), "groups:\n  - name: zillion-alerts\n    rules:\n"]
    for alert in ALERTS:
        lines.append(f"      - alert: {alert['name']}\n        expr: {quote(alert['expr'])}\n        for: {alert['for']}\n")
        lines.append(f"        labels:\n          severity: {alert['severity']}\n        annotations:\n")
        lines += [f"          {key}: {quote(text)}\n" for key, text in annotations(alert).items()]
    return "".join(lines)


def expand(text, labels):
    for name, value in labels.items():
        text = text.replace("{{ $labels.%s }}" % name, value)
    return text


def write_tests():
    lines = [WRITTEN.format("alerts.py"), "rule_files: [recording.yml, alerts.yml]\nevaluation_interval: 1m\ntests:\n"]
    for alert in ALERTS:
        test = alert["test"]
        lines.append(f"  - name: {alert['name']}\n    interval: 1m\n    input_series:\n")
        for series, values in test["series"]:
            lines.append(f"      - series: {quote(series)}\n        values: {quote(values)}\n")
        lines.append(f"    alert_rule_test:\n      - alertname: {alert['name']}\n        eval_time: {test['quiet']}\n        exp_alerts: []\n")
        lines.append(f"      - alertname: {alert['name']}\n        eval_time: {test['fires']}\n        exp_alerts:\n")
        labels = {**test["labels"], "severity": alert["severity"]}
        lines.append("          - exp_labels:\n")
        lines += [f"              {key}: {quote(value)}\n" for key, value in labels.items()]
        lines.append("            exp_annotations:\n")
        lines += [f"              {key}: {quote(expand(text, labels))}\n" for key, text in annotations(alert).items()]
    return "".join(lines)


def files():
    for name, *rest in DASHBOARDS:
        text = json.dumps(dashboard(name, *rest), indent=1, ensure_ascii=False) + "\n"
        yield HERE / "grafana" / f"{name}.json", text
    for name, text in (("recording", write_recording()), ("alerts", write_alerts()), ("tests", write_tests())):
        yield HERE / "prometheus" / f"{name}.yml", text


def main():
    stale = []
    for path, text in files():
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(str(path.relative_to(HERE)))
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit("these files are not what make.py writes, run dashboards/make.py: " + ", ".join(stale))


if __name__ == "__main__":
    main()
