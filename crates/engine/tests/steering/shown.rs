//! The status of tables, handlers and lanes as another process sees it (`ironwarp show`), while they change.

use ironwarp_engine::config::Config;
use ironwarp_engine::status::{self, Row};
use ironwarp_engine::{Class, Engine};
use ironwarp_rnic::event::{EventMap, Shape};
use ironwarp_rnic::qp::Completes;
use ironwarp_rnic::steering::RedirectionTable;
use ironwarp_testkit::engine::{Side, connect};
use std::num::NonZero;
use std::sync::Arc;

/// The status of the adapter that has an event queue of this class.
fn rows(of: &str) -> Vec<Row> {
    let names = status::adapters().unwrap();
    let mut mine = names
        .iter()
        .filter_map(|name| status::request(name, Some(std::process::id().cast_signed())).ok()?.read().ok());
    mine.find(|adapter| adapter.rows.iter().any(|row| row.text("of") == of))
        .expect("the adapter answers")
        .rows
}

fn of_kind<'r>(rows: &'r [Row], kind: &str) -> Vec<&'r Row> {
    rows.iter().filter(|row| row.kind() == kind).collect()
}

#[test]
fn tables_classes_and_lanes_are_shown_as_they_are_now() {
    let [client, server]: [Arc<Engine>; 2] = [(); 2].map(|()| Engine::new(Config::default()).unwrap());
    let (near, far) = (Side::new(&client, 8, 64), Side::new(&server, 8, 64));
    let [urgent, bulk] = [(); 2].map(|()| server.create_handler().unwrap());
    urgent.set_class(Class::LowLatency).unwrap();
    bulk.set_class(Class::Bulk(NonZero::new(77).unwrap())).unwrap();
    let processor = server.steering().processors(0).unwrap()[0];
    server.set_handler_processors(&bulk, &[processor]).unwrap();
    bulk.set_consumer("backup");
    let share = &format!("completions, bulk, share 77, processors {processor}, consumer backup");
    far.cq.set_handler(Some(&urgent));
    let pairs = (near.pair(1, Completes::WhenSent), far.pair(1, Completes::WhenSent));
    connect((&near, &pairs.0), (&far, &pairs.1));

    let before = rows(share);
    let lanes = of_kind(&before, "lane");
    let (last, rest) = lanes.split_last().unwrap();
    assert_eq!((last.text("name"), last.number("connections"), last.number("steered")), ("urgent", 1, 0));
    assert_eq!(rest.len(), server.steering().lanes());
    assert!(rest.iter().all(|lane| lane.number("steered") >= 128 / rest.len() as u64), "{rest:?}");
    let queues = of_kind(&before, "event queue");
    let of = |id: u64| queues.iter().find(|row| row.number("number") == id).unwrap().text("of");
    assert_eq!((of(urgent.id().0), of(bulk.id().0)), ("completions, low latency", share.as_str()));
    assert!(of_kind(&before, "route").iter().all(|row| row.text("shape") == "function"));

    let mut table = RedirectionTable::spread(1);
    table.entries_mut().fill(u16::try_from(rest.len() - 1).unwrap());
    server.steering().set_table(table).unwrap();
    server.event_queues().set_map(EventMap::new(Shape::ByCode, rest.len(), 0)).unwrap();
    let after = rows(share);
    assert_eq!(of_kind(&after, "lane")[rest.len() - 1].number("steered"), 128);
    let routes = of_kind(&after, "route");
    assert!(
        routes.iter().all(|row| (row.text("shape"), row.text("vector")) == ("code", "line")),
        "{routes:?}"
    );
}
