//! Tests of librdmacm from C: programs that are compiled against rdma-core's headers and linked to the drop-in. Each
//! case is a process, which prints the check that failed.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../common/mod.rs"]
mod common;

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cm");
/// Time after which a case is killed, because it hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Compiles a test program, linked to the drop-in under the names of both libraries, and runs one of its cases.
fn run(program: &str, persona: &str, case: &str) {
    let scratch = common::scratch(&format!("cm-{program}-{case}-{persona}"));
    let binary = scratch.join(program);
    let source = format!("{SOURCES}/{program}.c");
    let libraries = common::libraries();
    let folder = libraries.to_str().unwrap();
    common::compile(&binary, &["-O1", "-g", "-pthread", &source, "-L", folder, "-lrdmacm", "-libverbs"]);
    let mut command = Command::new(&binary);
    command
        .arg(case)
        .env("LD_LIBRARY_PATH", &libraries)
        .env("IRONWARP_PERSONA", persona)
        .env("IRONWARP_LANES", "2");
    let output = run_to_end(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {case}: {}\n{errors}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("done\n"), "{errors}");
    std::fs::remove_dir_all(scratch).unwrap();
}

/// Runs a program, kills it if it hangs, and returns its output.
fn run_to_end(mut command: Command) -> Output {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

macro_rules! cases {
    ($($program:literal as $persona:literal { $($name:ident: $case:literal;)* })*) => {
        $($(
            #[test]
            fn $name() {
                run($program, $persona, $case);
            }
        )*)*
    };
}

cases! {
    "blocking" as "roce" {
        a_thread_that_waits_may_be_cancelled_and_others_go_on: "cancelled";
        a_signal_ends_a_wait_unless_calls_are_restarted: "interrupted";
        a_nonblocking_descriptor_returns_eagain: "unwilling";
        each_event_goes_to_one_thread: "together";
        no_library_thread_takes_a_signal: "not_taken";
        a_thread_keeps_waiting_when_its_channel_is_destroyed: "left_behind";
        a_thread_keeps_waiting_when_its_completion_channel_is_destroyed: "left_behind_at_completions";
        a_thread_about_to_wait_for_a_destroyed_channel_waits_too: "left_on_the_way";
    }
    "events" as "roce" {
        a_program_that_polls_a_channel_is_woken_by_its_sockets: "replies";
        one_channel_serves_several_connections: "shared";
        several_threads_take_events_without_blocking: "threads";
        a_channel_that_blocks_again_has_events: "blocks_again";
        writes_arrive_while_the_program_does_not_look_at_its_channel: "passive";
        the_end_of_a_connection_does_not_keep_a_channel_readable: "ended";
    }
    "later" as "roce" {
        memory_of_the_library_is_registered_in_its_domain: "buffers";
        one_call_registers_what_its_structure_describes: "registers";
        speeds_and_parent_domains_are_those_of_later_releases: "queries";
        missing_features_of_later_releases_are_refused: "refuses";
        a_program_writes_events_to_its_own_channel: "writes";
        names_are_resolved_for_an_id: "resolves";
    }
    "ids" as "roce" {
        unreceived_data_does_not_keep_a_connection_open: "unreceived";
        the_end_is_reported_after_all_completions: "end_after_all_else";
        two_ids_connect_and_disconnect: "connects";
        receives_are_flushed_at_the_end: "flushes";
        a_rejection_carries_private_data: "rejects";
        a_missing_listener_is_reported_after_a_while: "refused";
        destroying_an_id_rejects_waiting_peers: "abandons";
        an_id_is_destroyed_when_its_events_are_acknowledged: "waits_for_acknowledgement";
        a_completion_queue_is_destroyed_when_its_events_are_acknowledged: "queue_waits_for_acknowledgement";
        objects_in_use_are_not_destroyed: "in_order";
        an_id_may_be_destroyed_before_its_queue_pair: "id_first";
        calls_in_the_wrong_state_are_refused: "out_of_turn";
        an_id_takes_its_events_to_another_channel: "moves";
        a_queue_pair_is_connected_by_another_id: "adopts";
        programs_connect_their_own_queue_pairs: "own_queue_pairs";
        datagrams_are_found_by_an_id: "datagrams";
        names_are_resolved_to_addresses: "addresses";
        options_of_ids: "options";
    }
    "ids" as "iwarp" {
        two_ids_connect_as_an_iwarp_adapter_does: "connects";
    }
    "ports" as "roce" {
        a_tcp_server_and_an_rdma_listener_have_one_port: "tcp_first";
        an_rdma_listener_makes_room_for_a_tcp_server: "rdma_first";
        an_rdma_listener_makes_room_for_one_that_only_listens: "rdma_before_listen";
        a_port_in_use_gives_the_errno_of_the_kernel: "clashes";
        a_port_of_another_process: "other_process";
        datagram_ports_are_separate: "datagrams";
        a_port_to_connect_from_beside_tcp: "source_ports";
        a_child_binds_any_port: "children";
    }
    "vectors" as "roce" {
        a_completion_vector_is_the_lane_that_serves_its_queue_pairs: "last";
        the_first_vector_is_a_lane_once_another_was_named: "first";
        completion_channels_are_as_many_as_completion_handlers: "channels";
    }
    "foreign" as "roce" {
        objects_of_two_contexts_are_not_combined: "contexts";
    }
    "forks" as "roce" {
        a_child_starts_fresh: "child_connects";
        connections_close_while_a_child_lives: "child_lives";
        a_child_may_destroy_what_it_inherited: "child_destroys";
        a_thread_forks_while_others_connect: "forks_meanwhile";
    }
}
