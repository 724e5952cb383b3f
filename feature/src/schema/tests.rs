//! Tests of the conversion between job sections and schemas, and of the sections that are refused.

use toml::Value;

use super::*;

fn read(text: &str) -> Result<Schema, String> {
    let job: Value = toml::from_str::<toml::Table>(text).unwrap().into();
    Schema::from_job(&job).map_err(|e| e.to_string())
}

#[test]
fn a_schema_keeps_the_order_of_the_file_and_shares_tables() {
    let schema = read(
        r#"
        [features.zeta]
        kind = "id"
        table = "ids"
        [features.age]
        kind = "numeric"
        transform = "log1p"
        missing = 0
        [features.alpha]
        kind = "ids"
        type = "string"
        table = "ids"
        pooling = "sqrtn"
        column = "tags"
        [features.price]
        kind = "bucketized"
        boundaries = [0, 1.5]
        [labels.click]
        column = "label"
        [columns]
        group = "user"
        "#,
    )
    .unwrap();
    assert_eq!(
        schema.features.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        ["zeta", "age", "alpha", "price"]
    );
    assert_eq!(schema.tables, ["ids", "price"]);
    assert_eq!(schema.sparse_tables(), [TableId(0), TableId(0), TableId(1)]);
    assert_eq!(schema.numeric().count(), 1);
    assert_eq!(schema.features[2].pooling(), Some(Pooling::Sqrtn));
    assert_eq!(schema.features[2].column, "tags");
    assert_eq!(schema.group.as_deref(), Some("user"));
    let printed: Value = Value::Table(schema.to_job().into_iter().collect());
    assert_eq!(Schema::from_job(&printed).unwrap(), schema);
}

#[test]
fn labels_have_thresholds_and_weights() {
    let job = |labels: &str| format!("[features.a]\nkind = 'id'\n{labels}");
    let schema =
        read(&job("[labels.like]\n[labels.ok]\ncolumn = 'rating'\nat_least = 3\nweight = 0.5"))
            .unwrap();
    let [like, ok] = &schema.labels[..] else { panic!("two labels") };
    assert_eq!((like.column.as_str(), like.at_least, like.weight), ("like", None, 1.0));
    assert_eq!((ok.column.as_str(), ok.at_least, ok.weight), ("rating", Some(3.0), 0.5));
    let printed: Value = Value::Table(schema.to_job().into_iter().collect());
    assert_eq!(printed["labels"]["like"].as_table().unwrap().len(), 1, "{printed}");
    assert_eq!(Schema::from_job(&printed).unwrap(), schema);
    for (labels, message) in [
        ("[labels.y]\nat_least = nan", "`labels.y.at_least`: must be finite"),
        ("[labels.y]\nweight = -1", "`labels.y.weight`: must be finite and not negative"),
        ("[labels.y]\natleast = 3", "did you mean `at_least`?"),
        ("[labels.y]\n[labels.z]\ncolumn = 'y'", "is the same as label `y`"),
        (
            "[labels.y]\ncolumn = 'r'\nat_least = 3\n[labels.z]\ncolumn = 'r'\nat_least = 3",
            "is the same as label `y`",
        ),
    ] {
        let error = read(&job(labels)).unwrap_err();
        assert!(error.contains(message), "{labels}: {error}");
    }
}

#[test]
fn sequences_crosses_and_side_tables_are_read_and_printed() {
    let schema = read(
        r#"
        [features.history]
        kind = "sequence"
        max_len = 50
        table = "item"
        [features.item]
        kind = "id"
        [features.age]
        kind = "bucketized"
        side = "users"
        boundaries = [18, 65]
        [features.genres]
        kind = "ids"
        type = "string"
        side = "items"
        by = "item"
        column = "genre"
        [features.item_x_age]
        kind = "cross"
        of = ["item", "age"]
        [labels.click]
        [side.users]
        path = "users.csv"
        key = "user"
        type = "string"
        [side.items]
        path = "items.parquet"
        key = "id"
        "#,
    )
    .unwrap();
    assert_eq!(schema.tables, ["item", "age", "genres", "item_x_age"]);
    assert_eq!(schema.features[0].pooling(), Some(Pooling::Mean));
    assert_eq!(schema.features[0].max_len(), Some(50));
    let side = |f: usize| schema.features[f].side.clone().unwrap();
    assert_eq!(side(2), SideRef { side: 0, by: "user".into() });
    assert_eq!(side(3), SideRef { side: 1, by: "item".into() });
    let FeatureKind::Cross { of, .. } = &schema.features[4].kind else { panic!() };
    assert_eq!(*of, [1, 2]);
    let printed: Value = Value::Table(schema.to_job().into_iter().collect());
    assert_eq!(Schema::from_job(&printed).unwrap(), schema);
}

#[test]
fn what_is_wrong_is_named() {
    let with = |feature: &str| format!("[features.f]\n{feature}\n[labels.y]");
    let cross =
        |feature: &str| with(&format!("{feature}\n[features.x]\nkind = 'cross'\nof = ['f']"));
    let side = |feature: &str| {
        with(&format!("kind = 'id'\n{feature}\n[side.users]\npath = 'u.csv'\nkey = 'u'"))
    };
    for (text, message) in [
        (with("kind = 'idd'"), "unknown value \"idd\" for `features.f.kind`; did you mean `id`?"),
        (
            with("kind = 'id'\npooling = 'sum'"),
            "unknown key `features.f.pooling`; expected one of `by`, `column`, `date_order`, `derive`, `kind`, `side`, `table`, `time_unit`, `type`, `zone`",
        ),
        (
            with("kind = 'ids'\npoolin = 'sum'"),
            "unknown key `features.f.poolin`; did you mean `pooling`?",
        ),
        (
            with("kind = 'ids'\npooling = 'avg'"),
            "unknown value \"avg\" for `features.f.pooling`; expected one of `max`, `mean`, `sqrtn`, `sum`",
        ),
        (
            with("kind = 'bucketized'"),
            "`features.f`: a bucketized feature needs `boundaries` or `buckets`; set `boundaries \
             = [..]`, or `buckets = n` for buckets of equal counts",
        ),
        (
            with("kind = 'bucketized'\nboundaries = [2, 1]"),
            "`features.f.boundaries`: must be finite, ascending and not empty",
        ),
        (with("kind = 'numeric'\nmissing = inf"), "`features.f.missing`: must be finite"),
        (
            with("kind = 'id'\ncolumn = 'y'"),
            "`features.f.column`: column `y` is also label `y`; a feature must not be the label",
        ),
        (
            with("kind = 'sequence'"),
            "`features.f`: a sequence needs `max_len`; set `max_len = n` to keep the most recent \
             n values",
        ),
        (with("kind = 'sequence'\nmax_len = 0"), "`features.f.max_len`: must be at least 1"),
        (
            with("kind = 'id'\nmax_len = 3"),
            "unknown key `features.f.max_len`; expected one of `by`, `column`, `date_order`, `derive`, `kind`, `side`, `table`, `time_unit`, `type`, `zone`",
        ),
        (
            with("kind = 'cross'\nof = ['f', 'g']"),
            "`features.f.of`: a cross cannot be its own member; name other features",
        ),
        (
            with("kind = 'cross'\nof = ['user', 'g']\n[features.users]\nkind = 'id'"),
            "unknown value \"user\" for `features.f.of`; did you mean `users`?",
        ),
        (
            with("kind = 'cross'\nof = ['g', 'h']\n[features.g]\nkind = 'id'"),
            "`features.f.of`: `g` is declared after the cross; declare it before the cross",
        ),
        (
            cross("kind = 'ids'"),
            "`features.x.of`: `f` may have several values in a row, but a cross needs one; name another feature",
        ),
        (
            cross("kind = 'sequence'\nmax_len = 2"),
            "`features.x.of`: `f` may have several values in a row, but a cross needs one; name another feature",
        ),
        (
            cross("kind = 'numeric'"),
            "`features.x.of`: `f` is a number, but a cross needs ids; declare `kind = \"bucketized\"` for it",
        ),
        (
            cross("kind = 'id'"),
            "`features.x.of`: a cross needs at least two features; set `of = [\"..\", \"..\"]`",
        ),
        (
            cross("kind = 'id'").replace("['f']", "['f', 'f']"),
            "`features.x.of`: `f` is named twice; name it once",
        ),
        (
            cross("kind = 'id'").replace("of =", "column = 'f'\nof ="),
            "unknown key `features.x.column`; expected one of `kind`, `of`, `table`",
        ),
        (
            with("kind = 'id'\nby = 'u'"),
            "`features.f.by`: has no effect without a side table; add `side = \"..\"`, or remove \
             `by`",
        ),
        (
            with("kind = 'id'\nside = 'users'"),
            "`features.f.side`: the job has no side tables; add `[side.users]` with `path` and `key`",
        ),
        (
            side("side = 'user'"),
            "unknown value \"user\" for `features.f.side`; did you mean `users`?",
        ),
        (
            side("side = 'users'\nby = 'y'"),
            "`features.f.by`: column `y` is also label `y`; a feature must not be the label",
        ),
        (
            side(""),
            "`side.users`: no feature reads this side table; give a feature `side = \"users\"`, or remove the section",
        ),
        (side("side = 'users'").replace("key = 'u'", ""), "missing key `side.users.key`; set it"),
        (
            side("side = 'users'").replace("key = 'u'", "kee = 'u'"),
            "unknown key `side.users.kee`; did you mean `key`?",
        ),
        (
            "[labels.y]".to_owned(),
            "`features`: a job needs at least one feature; add a section `[features.NAME]`",
        ),
        (
            "features = 3".to_owned(),
            "`features`: expected a table, found integer; write it as a section",
        ),
    ] {
        assert_eq!(read(&text).unwrap_err(), message, "{text}");
    }
}

#[test]
fn a_unit_of_event_times_comes_and_goes_with_them() {
    let read = |columns: &str| {
        let text = format!("[features.a]\nkind='id'\n[labels.y]\n[columns]\n{columns}");
        Schema::from_job(&toml::from_str::<toml::Table>(&text).unwrap().into())
    };
    let order = "event_date_order='day_first'";
    let dated = read(&format!("event_time='t'\nevent_time_unit='s'\n{order}")).unwrap();
    let printed = toml::Table::from_iter(dated.to_job());
    assert_eq!(Schema::from_job(&printed.into()).unwrap(), dated);
    let without_unit = read(&format!("event_time='t'\n{order}")).unwrap_err().to_string();
    assert!(without_unit.contains("set `columns.event_time_unit`"), "{without_unit}");
    let schema = read("event_time='t'\nevent_time_unit='ms'").unwrap();
    assert_eq!(schema.event_time_unit, Some(TimeUnit::Millisecond));
    let printed = toml::Table::from_iter(schema.to_job());
    assert_eq!(Schema::from_job(&printed.into()).unwrap(), schema);
    let alone = read("event_time_unit='s'").unwrap_err().to_string();
    assert!(alone.contains("columns.event_time_unit"), "{alone}");
    let other = read("event_time='t'\nevent_time_unit='minutes'").unwrap_err().to_string();
    assert!(other.contains("columns.event_time_unit"), "{other}");
}
