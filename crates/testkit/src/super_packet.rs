//! Frames as a kernel passes them to a device with segmentation and checksum offload: a virtio-net header, and one packet with
//! the payload of many and a checksum that covers its pseudo-header only.

/// Length of the virtio header.
pub const VNET_HEADER: usize = 12;

/// A packet of TCP or UDP that fills several frames.
#[derive(Clone, Debug)]
pub struct SuperPacket {
    /// Number of VLAN tags. The inner one is 802.1Q, an outer one 802.1ad.
    pub tags: usize,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Words of options of IPv4, or number of extension headers of IPv6.
    pub extras: u8,
    /// UDP instead of TCP.
    pub udp: bool,
    /// Words of options of TCP.
    pub tcp_options: u8,
    /// Flags of TCP.
    pub tcp_flags: u8,
    /// Sequence number of TCP.
    pub sequence: u32,
    /// Identification of IPv4.
    pub id: u16,
    /// Payload of each segment, or 0 to complete the checksum only.
    pub size: u16,
    /// Payload of the packet.
    pub payload: Vec<u8>,
}

impl SuperPacket {
    /// Length of the payload's transport header.
    pub fn transport_header(&self) -> usize {
        if self.udp { 8 } else { 20 + usize::from(self.tcp_options) * 4 }
    }

    /// Offset of the IP header in the frame.
    pub fn ip(&self) -> usize {
        14 + self.tags * 4
    }

    /// Offset of the transport header in the frame.
    pub fn transport(&self) -> usize {
        self.ip()
            + if self.ipv6 { 40 + usize::from(self.extras) * 8 } else { 20 + usize::from(self.extras) * 4 }
    }

    /// Returns the frame with its virtio header.
    pub fn bytes(&self) -> Vec<u8> {
        let start = u16::try_from(self.transport()).unwrap();
        let headers = start + u16::try_from(self.transport_header()).unwrap();
        let kind = match (self.udp, self.ipv6) {
            _ if self.size == 0 => 0,
            (true, _) => 5,
            (false, false) => 1,
            (false, true) => 4,
        };
        let ecn = if kind == 1 || kind == 4 { self.tcp_flags & 0x80 } else { 0 };
        let mut bytes = vec![1, kind | ecn];
        for field in [headers, self.size, start, if self.udp { 6 } else { 16 }, 0] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend([0x33, 0x33, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1]);
        let tags = [[0x88, 0xa8, 0x20, 7], [0x81, 0, 0, 5]];
        bytes.extend(tags[2 - self.tags..].as_flattened());
        bytes.extend(if self.ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        let transport = self.transport_bytes();
        bytes.extend(if self.ipv6 { self.ipv6(transport.len()) } else { self.ipv4(transport.len()) });
        bytes.extend(transport);
        bytes
    }

    fn protocol(&self) -> u8 {
        if self.udp { 17 } else { 6 }
    }

    fn ipv4(&self, len: usize) -> Vec<u8> {
        let mut header = vec![0x45 + self.extras, 2];
        let total = 20 + usize::from(self.extras) * 4 + len;
        header.extend(u16::try_from(total).unwrap().to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend([0x40, 0, 64, self.protocol(), 0, 0, 10, 5, 0, 1, 10, 5, 0, 2]);
        header.resize(20 + usize::from(self.extras) * 4, 1); // no operation
        let checksum = !sum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn ipv6(&self, len: usize) -> Vec<u8> {
        let len = u16::try_from(usize::from(self.extras) * 8 + len).unwrap();
        let destination_options = 60;
        let next = if self.extras == 0 { self.protocol() } else { destination_options };
        let mut header = vec![0x60, 0x21, 0x23, 0x45];
        header.extend(len.to_be_bytes());
        header.extend([next, 64]);
        header.extend([[0xfd; 16], [0xfc; 16]].as_flattened());
        for extra in 1..=self.extras {
            let next = if extra == self.extras { self.protocol() } else { destination_options };
            header.extend([next, 0, 1, 4, 0, 0, 0, 0]); // padding
        }
        header
    }

    fn transport_bytes(&self) -> Vec<u8> {
        let mut header = vec![0x12, 0x34, 0x00, 0x50];
        let len = self.transport_header() + self.payload.len();
        if self.udp {
            header.extend(u16::try_from(len).unwrap().to_be_bytes());
            header.extend([0; 2]);
        } else {
            header.extend(self.sequence.to_be_bytes());
            header.extend([0, 0, 0x30, 0x39, (5 + self.tcp_options) << 4, self.tcp_flags, 0x7f, 0xff]);
            header.extend([0, 0, 0, 7]);
            header.resize(self.transport_header(), 1); // no operation
        }
        let at = if self.udp { 6 } else { 16 };
        header[at..at + 2].copy_from_slice(&sum(&self.pseudo_header(len)).to_be_bytes());
        header.extend(&self.payload);
        header
    }

    /// Returns the pseudo-header of a packet with `len` bytes of transport header and payload.
    pub fn pseudo_header(&self, len: usize) -> Vec<u8> {
        let mut bytes =
            if self.ipv6 { [[0xfd; 16], [0xfc; 16]].concat() } else { vec![10, 5, 0, 1, 10, 5, 0, 2] };
        bytes.extend(u32::try_from(len).unwrap().to_be_bytes());
        bytes.extend([0, 0, 0, self.protocol()]);
        bytes
    }
}

/// The ones' complement sum of 16-bit words (RFC 1071), word by word.
pub fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum: u16, word| {
        let word = u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}
