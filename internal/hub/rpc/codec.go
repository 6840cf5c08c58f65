package rpc

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// strictJSON is the JSON of requests and answers. Unlike Connect's own it refuses fields that it
// does not know: a misspelt one is an error, not a default.
type strictJSON struct{ name string }

// withStrictJSON replaces Connect's codecs of JSON.
func withStrictJSON() connect.HandlerOption {
	return connect.WithHandlerOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

func (c strictJSON) Name() string { return c.name }

func (c strictJSON) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return protojson.Marshal(m)
}

func (c strictJSON) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	if len(data) == 0 {
		return errors.New("the body is empty; send a JSON object, {} if nothing is to be said")
	}
	if err := protojson.Unmarshal(data, m); err != nil {
		return fmt.Errorf("%w; /openapi.json lists the fields of each request", err)
	}
	return nil
}
