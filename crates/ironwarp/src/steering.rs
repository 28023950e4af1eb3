//! Steering: assigns queue pairs to the adapter's threads (lanes).

use crate::adapter::Adapter;
use crate::queue::QueuePair;
use crate::shared::Shared;
use std::io;
use std::sync::Arc;

pub use ironwarp_engine::{LaneLoad, MoveError, NoSuchLane};
pub use ironwarp_rnic::steering::{HashKey, InvalidTable, NoHashKey, RedirectionTable};

/// Controls which lane of an adapter serves which queue pair. Lanes are threads of the adapter, which serve connections
/// while no thread of the program polls or waits for their completions.
///
/// A hash of a new connection's addresses selects an entry of the [redirection table](RedirectionTable), which names
/// the lane. The adapter also moves queue pairs from busy lanes to idle ones
/// ([`Config::rebalance`](crate::Config::rebalance)).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let adapter = ironwarp::Adapter::new()?;
/// let steering = adapter.steering();
/// for (lane, load) in steering.load().iter().enumerate() {
///     println!("lane {lane}: {} sockets, {:?} of a processor", load.sockets, load.busy);
/// }
/// // Assign all new connections to the last lane.
/// let mut table = steering.table();
/// table.entries_mut().fill(u16::try_from(steering.lanes() - 1)?);
/// steering.set_table(table)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Steering {
    shared: Arc<Shared>,
}

impl Steering {
    /// Returns the number of lanes: [`Config::lanes`](crate::Config::lanes), but at most the number of processors.
    ///
    /// ```
    /// # use ironwarp::prelude::*;
    /// let adapter = Adapter::open(Config::default().lanes(1))?;
    /// assert_eq!(adapter.steering().lanes(), 1);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn lanes(&self) -> usize {
        self.shared.engine.steering().lanes()
    }

    /// Returns the current redirection table.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// assert_eq!(steering.table(), ironwarp::steering::RedirectionTable::spread(steering.lanes()));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn table(&self) -> RedirectionTable {
        self.shared.engine.steering().table()
    }

    /// Replaces the redirection table (requirement I7). The new table, which may have another size and another mask,
    /// applies to new connections; existing connections stay on their lanes.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// use ironwarp::steering::RedirectionTable;
    ///
    /// steering.set_table(RedirectionTable::spread(1)).expect("there is a lane 0");
    /// assert!(steering.set_table(RedirectionTable::spread(steering.lanes() + 1)).is_err());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if an entry of the table names a lane that the adapter does not have.
    pub fn set_table(&self, table: RedirectionTable) -> Result<(), NoSuchLane> {
        self.shared.engine.steering().set_table(table)
    }

    /// Replaces the secret key of the hash (requirement I7). An empty key, `HashKey::default()`, has the adapter generate
    /// a random one. The new key applies to new connections; existing connections stay on their lanes.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// use ironwarp::steering::HashKey;
    ///
    /// steering.set_key(&HashKey::new([0x6d; 40]))?; // known, for a test
    /// steering.set_key(&HashKey::default())?; // random
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the system has no random numbers.
    pub fn set_key(&self, key: &HashKey) -> io::Result<()> {
        self.shared.engine.steering().set_key(key)
    }

    /// Returns the load of each lane.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// assert!(steering.load().iter().all(|lane| lane.sockets == 0), "no connections yet");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn load(&self) -> Vec<LaneLoad> {
        self.shared.engine.steering().load()
    }

    /// Returns the numbers of the processors that a lane may run on. Starts the lanes if they do not run yet.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// assert!(!steering.processors(0)?.is_empty());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter has no lane with this number, or if its lanes cannot be started.
    pub fn processors(&self, lane: usize) -> io::Result<Vec<usize>> {
        self.shared.engine.steering().processors(lane)
    }

    /// Restricts a lane to the processors with these numbers (requirement N5). Starts the lanes if they do not run yet.
    /// Queue pairs whose [completion handler](crate::completion::CompletionHandler::set_processors) is restricted to
    /// other processors move to another lane.
    ///
    /// ```
    /// # let steering = ironwarp::Adapter::new()?.steering();
    /// let first = steering.processors(0)?[0];
    /// steering.set_processors(0, &[first])?;
    /// assert_eq!(steering.processors(0)?, [first]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the process may not use any of the processors, if the adapter has no lane with this number, if its lanes
    /// cannot be started, or if a queue pair has to move and no lane fits its completion handler.
    pub fn set_processors(&self, lane: usize, processors: &[usize]) -> io::Result<()> {
        self.shared.engine.steering().set_processors(lane, processors)
    }

    /// Moves a queue pair to another lane. This is safe while messages flow: none is lost, duplicated or reordered.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (client, server) = ironwarp::example::pair()?;
    /// let steering = client.adapter.steering();
    /// let last = steering.lanes() - 1;
    /// steering.move_queue_pair(&client.qp, last)?;
    /// assert_eq!(client.qp.lane(), Some(last));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the adapter has no lane with this number, if the queue pair is not connected, or if the lane may run on
    /// other processors than the [completion handler](crate::completion::CompletionHandler::set_processors) of its
    /// receives. After any other error the queue pair stays on its lane.
    pub fn move_queue_pair(&self, qp: &QueuePair, to: usize) -> Result<(), MoveError> {
        self.shared.engine.steering().move_queue_pair(qp.inner(), to)
    }
}

impl Adapter {
    /// Returns a handle that shows and controls which of the adapter's lanes serves which queue pair.
    ///
    /// ```
    /// # let adapter = ironwarp::Adapter::new()?;
    /// assert_eq!(adapter.steering().load().len(), adapter.steering().lanes());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn steering(&self) -> Steering {
        Steering { shared: Arc::clone(&self.shared) }
    }
}
