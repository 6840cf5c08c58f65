package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestDatagramRoundTrip(t *testing.T) {
	for name, d := range map[string]Datagram{
		"empty":        {Type: DatagramData, Flow: 0, Sequence: 0},
		"data":         {Type: DatagramData, Flow: 7, Sequence: 65535, Payload: []byte("x")},
		"highest flow": {Type: DatagramData, Flow: 1<<32 - 1, Sequence: 1, Payload: make([]byte, 1200)},
		"largest":      {Type: DatagramData, Flow: 1 << 31, Payload: make([]byte, MaxPayload)},
		"open":         {Type: DatagramOpen, Flow: 300, Sequence: 9, Header: []byte("header"), Payload: []byte("p")},
		"open, empty":  {Type: DatagramOpen, Flow: 300, Header: []byte("header")},
		"part":         {Type: DatagramPart, Flow: 1, Sequence: 5, Index: 3, Count: 4, Payload: []byte("abc")},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := d.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ParseDatagram(b)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(d, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if len(b) > MaxDatagram && d.Type == DatagramData {
				t.Errorf("%d bytes encoded, MaxDatagram is %d", len(b), MaxDatagram)
			}
		})
	}
}

func TestDatagramRefused(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":               {},
		"unknown type":          {9, 1, 0, 0},
		"no flow":               {1},
		"flow not ended":        {1, 0x80},
		"flow above 32 bits":    {1, 0xff, 0xff, 0xff, 0xff, 0x1f, 0, 0},
		"flow longer than need": {1, 0x81, 0x00, 0, 0},
		"no sequence":           {1, 1, 0},
		"no header length":      {2, 1, 0, 0, 0},
		"header cut short":      {2, 1, 0, 0, 0, 5, 'a'},
		"header over limit":     append([]byte{2, 1, 0, 0, 0x10, 0x01}, make([]byte, 5000)...),
		"no part number":        {3, 1, 0, 0},
		"one part":              {3, 1, 0, 0, 0x01},
		"five parts":            {3, 1, 0, 0, 0x05},
		"part beyond count":     {3, 1, 0, 0, 0x22},
		"payload over limit":    append([]byte{1, 1, 0, 0}, make([]byte, MaxPayload+1)...),
	} {
		t.Run(name, func(t *testing.T) {
			if d, err := ParseDatagram(b); !errors.Is(err, ErrDatagram) {
				t.Errorf("got %+v, %v", d, err)
			}
		})
	}
	for name, d := range map[string]Datagram{
		"payload": {Type: DatagramData, Payload: make([]byte, MaxPayload+1)},
		"header":  {Type: DatagramOpen, Header: make([]byte, MaxHeader+1)},
	} {
		if _, err := d.Append(nil); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s over its limit: %v", name, err)
		}
	}
}

func FuzzParseDatagram(f *testing.F) {
	for _, d := range []Datagram{
		{Type: DatagramData, Flow: 1, Sequence: 2, Payload: []byte("payload")},
		{Type: DatagramOpen, Flow: 1 << 20, Sequence: 3, Header: []byte("h"), Payload: []byte("p")},
		{Type: DatagramPart, Flow: 1<<32 - 1, Sequence: 4, Index: 1, Count: 2, Payload: []byte("q")},
	} {
		b, err := d.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{3, 0x80, 0x80, 0x80, 0x80, 0x80})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDatagram(b)
		if err != nil {
			return
		}
		again, err := d.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("parsed %x, encoded %x", b, again)
		}
	})
}
