//! For tests: any JSON value, as a strategy of proptest.

use proptest::prelude::*;
use serde_json::Value;

/// Any JSON value.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![".*", "[a-z\"\\\\{}\\[\\], ]{0,80}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-1e15f64..1e15).prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((text.clone(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}
