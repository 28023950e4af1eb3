//! Connections that stay with TCP: the setting is off at either end, so are the private extensions, or markers are on.

use super::common::{Host, TCP, connect, rings_mapped};
use super::stream::{Place, stream_between};
use ironwarp_engine::config::Config;
use ironwarp_rnic::qp::Completes;
use ironwarp_testkit::child;

const PLACE: Place = Place { at: 0, slots: 8, max: 100_000 };
const MESSAGES: u64 = 60;

#[test]
fn without_the_setting_or_private_extensions_or_with_markers_tcp_carries_everything() {
    let test = "off::without_the_setting_or_private_extensions_or_with_markers_tcp_carries_everything";
    if !child::in_child(test) {
        return;
    }
    let config = || Config::default().shm(true);
    let cases = [
        (config().shm(false), config()),
        (config(), config().shm(false)),
        (config().shm(false), config().shm(false)),
        (config().private(false), config()),
        (config(), config().private(false)),
        (config().markers(true), config()),
        (config(), config().markers(true)),
    ];
    for (near, far) in cases {
        // Only Ironwarp peers acknowledge, and know immediate data of Sends.
        let private = near.private && far.private;
        let completes = if private { Completes::WhenAcknowledged } else { Completes::WhenSent };
        let context = format!("client {:?}, server {:?}", settings(&near), settings(&far));
        let (client, server) = (Host::new(near, PLACE.len()), Host::new(far, PLACE.len()));
        let (client, server) = (client.end(completes), server.end(completes));
        connect(&client, &server);
        if private {
            stream_between(&client, &server, PLACE, |sent| sent < MESSAGES);
        } else {
            super::common::greet(&client, &server);
        }
        assert_eq!((client.routes(), server.routes()), (TCP, TCP), "{context}");
        assert_eq!(rings_mapped(), 0, "{context}");
    }
    // With all of them on, the same test does use shared memory.
    let (client, server) = super::common::ends(&config(), Completes::WhenAcknowledged, PLACE.len());
    stream_between(&client, &server, PLACE, |sent| sent < MESSAGES);
    ironwarp_testkit::wait::until(|| rings_mapped() == 2);
}

fn settings(config: &Config) -> [Option<String>; 3] {
    ["shm", "private", "markers"].map(|name| config.get(name))
}
