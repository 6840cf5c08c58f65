package identity

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"

	"filippo.io/mldsa"
)

// ExporterLabel is the TLS exporter label (RFC 8446, 7.5) that binds a proof to its connection.
const ExporterLabel = "EXPORTER-adit"

// ExporterSize is the length of the exporter value in bytes.
const ExporterSize = 32

const proofContext = "adit proof v1"

// ProofMessage is what a token's keys sign: context, role, node key, peer key and the exporter
// value of this very TLS connection, each with its length.
func ProofMessage(role string, nodeKey, peerKey ed25519.PublicKey, exporter []byte) []byte {
	var b []byte
	for _, f := range [][]byte{[]byte(proofContext), []byte(role), nodeKey, peerKey, exporter} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
	}
	return b
}

// Sign signs a proof message with both keys.
func (k *TokenKeys) Sign(msg []byte) (ed, ml []byte, err error) {
	ml, err = k.ml.Sign(nil, msg, &mldsa.Options{Context: proofContext})
	if err != nil {
		return nil, nil, fmt.Errorf("ML-DSA-65 signature: %w", err)
	}
	return ed25519.Sign(k.ed, msg), ml, nil
}

// Verify checks both signatures over a proof message.
func (p TokenPublic) Verify(msg, ed, ml []byte) error {
	if len(p.Ed25519) != ed25519.PublicKeySize || !ed25519.Verify(p.Ed25519, msg, ed) {
		return errors.New("the Ed25519 signature of the token does not verify")
	}
	pub, err := mldsa.NewPublicKey(mldsa.MLDSA65(), p.MLDSA65)
	if err != nil {
		return fmt.Errorf("stored ML-DSA-65 key: %w", err)
	}
	if err := mldsa.Verify(pub, msg, ml, &mldsa.Options{Context: proofContext}); err != nil {
		return errors.New("the ML-DSA-65 signature of the token does not verify")
	}
	return nil
}
